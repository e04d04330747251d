// Everything that a training program needs, in one include: the session (worker/session.h), data
// sets and their loader (worker/data), layers and models (worker/nn), the device to compute on.
#pragma once

#include "kernels/backend.h"
#include "worker/data/dataset.h"
#include "worker/data/fashion_mnist.h"
#include "worker/data/loader.h"
#include "worker/data/sampler.h"
#include "worker/nn/classifier.h"
#include "worker/nn/sequential.h"
#include "worker/nn/session_parameters.h"
#include "worker/session.h"
