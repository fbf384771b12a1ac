"""What a run shows while it trains: metrics, timers, rollout logs, console lines and plots. Changes no number of it."""
