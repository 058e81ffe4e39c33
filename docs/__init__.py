"""How the documentation is made: its tables, its code blocks, its example. The pages are beside this file."""
