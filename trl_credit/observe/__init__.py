"""What a run shows while it trains: metrics, timers, rollout logs, console lines and plots. Never changes the run."""
