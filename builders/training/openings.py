"""The few words that texts begin with, so that they are about many things: everything else the target writes itself.

Given nothing but its template's opening a small model keeps to the few subjects that it was tuned on. One or two words lead it elsewhere;
tasks over a passage teach a head what short questions cannot: to look far back.
"""

from __future__ import annotations

QUESTIONS = (
    "", "", "", "", "What", "Who", "When", "Where", "Which", "Why", "How", "How many", "What is the difference between", "Is it",
    "Can you", "Explain", "Explain how", "Describe", "Write", "Write a short", "Write an email", "Write a story about", "Give me",
    "List", "Name", "Compare", "I want", "I have", "Imagine", "Suppose", "Create", "Design", "Tell me about", "In the", "The",
    "A", "My", "Please", "Help me", "What happened", "Who was", "Who wrote", "What year", "In which country", "What are the",
    "Define", "Summarize", "Implement", "Fix", "Write a Python function", "Should", "Does", "If", "You are", "As a", "Pretend",
    "Classify", "Extract", "Rewrite",
)  # fmt: skip
"""First words of a user's turn that is about nothing given."""

PROBLEMS = (
    "Tom has", "A train", "A farmer", "If x", "Sarah buys", "There are", "A box", "How much", "Solve", "A shop sells", "Each",
    "Find the", "The sum of", "A rectangle", "In a class of", "John earns", "It takes", "Calculate", "What is the value of",
    "Maria has twice",
)  # fmt: skip
"""First words of a problem to be solved by calculation."""

PROBLEM_TASKS = ("", "", "Solve step by step: ", "Solve the problem. Show your work.\n\n")

PASSAGES = (
    "Write a long article about", "Write a news report about", "Write an encyclopedia entry about", "Tell me everything about",
    "Write the first chapter of a book about", "Describe in detail the history of",
)  # fmt: skip
"""First words of a request for a text that later dialogues work on."""

TASKS = (
    ("Summarize the following text:", ""), ("Summarize:", ""), ("", "Summarize the text above in a few sentences."),
    ("", "TL;DR:"), ("Rewrite the following text in simple words:", ""), ("List the main points of this text:", ""),
    ("Write a headline for this article:", ""), ("Write a short summary of this news article:", ""),
    ("Correct the mistakes in the following text:", ""), ("Continue the following text:", ""),
    ("Extract all names and places from this text:", ""), ("", "What is this text about?"),
)  # fmt: skip
"""(what stands before, what stands after) a passage."""

PASSAGE_QUESTIONS = ("Answer the question using the passages below.", "Use the following documents to answer the question.", "")
"""Stand before several passages; the question is the target's own."""

TRANSLATIONS = ("Translate the following {} text into English:", "Translate from {} to English:", "What does this {} text mean in English?")
LANGUAGES = {
    "German": ("Der Präsident", "Die Stadt", "Wir haben", "Es gibt", "Die Kinder", "Ich bin"),
    "French": ("Le président", "La ville", "Nous avons", "Il y a", "Les enfants", "Je suis"),
    "Spanish": ("El presidente", "La ciudad", "Nosotros", "Hay", "Los niños", "Yo soy"),
}  # fmt: skip
"""Language → first words of a text in it."""

FOLLOW_UPS = (
    "", "", "What", "Why", "How", "Can you", "Now", "Rewrite", "Rewrite your answer", "Make it shorter", "Summarize", "Explain",
    "Give me", "And", "Translate", "What if", "List", "Add", "Write", "Is", "Do you", "Change",
)  # fmt: skip
"""First words of a user's second turn."""
