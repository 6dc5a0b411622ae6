"""Models: what they are asked, and what they answer, in the services' forms and in none."""
