// Everything that a training program needs: the session, the data, the layers.
#pragma once

#include "worker/data/fashion_mnist.h"
#include "worker/data/loader.h"
#include "worker/session.h"
