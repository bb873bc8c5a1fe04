"""Where the time of a training loop goes: measure, judge, show."""
