"""Tables, figures and sentences about runs, as HTML and as text."""
