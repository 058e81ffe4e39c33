"""Code that runs inside a training, dsnb's or the user's: its clock, its failures, and the recorder of scripts.

It imports torch, and changes nothing in the process that imports it.
"""
