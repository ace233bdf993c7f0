"""What the field claims, beside what comes out here: one small scenario a claim, one table."""
