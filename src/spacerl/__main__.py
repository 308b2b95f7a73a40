from spacerl.cli import main

main()
