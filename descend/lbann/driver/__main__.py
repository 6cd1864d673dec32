"""`python -m descend.lbann.driver`."""

from descend.lbann.driver.main import main

if __name__ == "__main__":
    main()
