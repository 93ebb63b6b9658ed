"""What a process of ours shows to others, such as the sidebar, and takes from them."""
