"""Sources of a batch: responses, chains of rollouts, trees and their replay. May import `passes` and below."""
