"""What is done to whom. A fault is a coroutine that strikes once and writes down what it did and what that may lead to."""
