"""The accounting standard, submissions and the site.

Holds nothing yet: packing and verifying submissions, and the site, land here.
"""
