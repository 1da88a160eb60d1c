"""The gateway in front of providers of the tests: bytes that pass, what is kept of them, the programs that `run` and
`replay` start, and all that a program, a provider or a store may do wrong."""
