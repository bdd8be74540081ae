#pragma once

#include <dlfcn.h>

namespace troupe::tests {

/// The function of this name that would be called without the library that calls this.
template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

}  // namespace troupe::tests
