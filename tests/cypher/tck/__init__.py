"""Runner of the openCypher technology compatibility kit, whose feature files are not part of this repository.

Run it as `make tck FEATURES=FOLDER`, where the folder holds ``*.feature`` files. Named graphs, such as
``binary-tree-1``, are looked up in ``graphs`` and in ``../tck-graphs`` next to the folder.
"""
