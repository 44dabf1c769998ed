"""Input and output transforms: any policy with any simulator. numpy only."""
