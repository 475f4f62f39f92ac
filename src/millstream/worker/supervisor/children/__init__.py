"""The child processes of a supervisor: started, kept running, replaced, and cleared up after."""
