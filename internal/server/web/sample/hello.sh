#!/bin/sh
# Greets the person who is named, or the world.
echo "Helo, ${1:-world}!"
