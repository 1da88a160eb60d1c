"""Programs, servers and fixtures that several tests share."""
