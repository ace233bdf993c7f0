"""What is measured, and checked against what others recorded; run by hand or by `make bench`."""
