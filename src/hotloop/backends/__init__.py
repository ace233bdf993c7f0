"""Running a batch on hardware, behind one Protocol."""
