"""``python -m specbuild`` is ``specbuild``."""

from specbuild.cli.main import main

main()
