"""The bundled models' recipe: ``python -m slipstream.drafters.training family --data DIR --out DIR``."""

import sys


def main() -> None:
    """Runs the recipe, or prints what is missing for it."""
    try:
        from slipstream.drafters.training.family.command import main as run
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing.startswith("slipstream.drafters.training.family"):
            sys.exit("The recipe of the bundled models is not installed. Run this in a checkout of slipstream.")
        if missing.startswith("slipstream"):
            raise
        sys.exit(f"The recipe needs {missing}, which is not installed. Install it: pip install 'slipstream[train]'.")
    run()


if __name__ == "__main__":
    main()
