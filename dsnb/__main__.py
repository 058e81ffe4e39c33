"""`python -m dsnb`: the command line, without modules from the current folder."""

from dsnb.base.system import interpreter

if __name__ == "__main__":
    interpreter.drop_current_folder()

    from dsnb.cli.app import main

    main()
