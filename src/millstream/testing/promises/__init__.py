"""The promises of the Broker contract, by verb. Each test states one in its name."""
