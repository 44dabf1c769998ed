"""π0 (arXiv 2410.24164) and π0.5 (arXiv 2504.16054): flow-matching policies over PaliGemma."""
