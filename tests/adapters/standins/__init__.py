"""Stand-ins for frameworks: the few names that an adapter takes from each, for where the framework is not installed."""
