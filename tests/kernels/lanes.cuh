#pragma once
#define LANES 32
