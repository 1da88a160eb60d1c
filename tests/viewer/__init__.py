"""Tests of the viewer: who is let in, what the pages and their JSON twins say, and, where there is a browser, how they
behave in one."""
