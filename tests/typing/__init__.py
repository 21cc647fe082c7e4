"""What type checkers see of the public interface: right uses pass, wrong uses are found. Checked, not run."""
