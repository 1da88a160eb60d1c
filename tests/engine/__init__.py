"""Tests of a store and what it is made of."""
