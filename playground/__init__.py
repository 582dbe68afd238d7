"""The playground of the site: the page, and in `engine` what it computes."""
