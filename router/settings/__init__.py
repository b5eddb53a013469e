"""The settings: one model for each section of the YAML file, with the one default of each field.

Also how the file is read, checked and described. What changes when it is read again is in
`router/reload.py`.
"""
