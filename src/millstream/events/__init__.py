"""Events: topics, groups, subscriptions and broadcasts."""
