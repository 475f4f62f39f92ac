"""The promises of the Broker contract, by verb. The name of each test states one promise."""
