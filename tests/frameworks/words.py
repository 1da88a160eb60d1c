"""What is said in every row of the matrix."""

PROMPT = "Be terse."
FIRST, SECOND = "What is the weather in Rome?", "Thanks."
