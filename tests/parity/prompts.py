"""Prompts for the default model: what a user says, and plain text to go on with."""

CHATS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain what a prime number is to a child of ten.",
    "List five uses of a paper clip.",
    "Translate to French: The cat sleeps on the warm stove.",
    "Write a Python function that reverses a string.",
    "Why is the sky blue?",
    "Give me a recipe for pancakes with exact amounts.",
    "Summarize the plot of Romeo and Juliet in three sentences.",
    "What is 17 times 23? Show the steps.",
    "Who wrote Don Quixote, and when?",
    "Make a packing list for three days in the mountains.",
)
TEXTS = (
    "Once upon a time, in a village between two rivers,",
    "def fibonacci(n):\n    ",
    "The three laws of thermodynamics state that",
    "Dear Sir or Madam,\n\nI am writing to",
    "1, 1, 2, 3, 5, 8, 13,",
    "Der schnelle braune Fuchs",
    "import numpy as np\n\n# Solve a small linear system\n",
    "In 1969, humans first",
)
GREEDY_TOKENS = 200
