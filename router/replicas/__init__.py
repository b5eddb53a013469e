"""What the processes of one router tell each other of their requests.

Starting and watching processes is in `processes/`.
"""
