// Durations, with which texts wait; the translator includes it for those that name them.
#pragma once

#include <chrono>
