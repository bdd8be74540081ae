#pragma once

// LibTorch's header of this name defines CHECK as one that ends the process. In a test it is
// Catch2's, whichever header comes first.

#pragma push_macro("CHECK")
#include_next <c10/util/logging_is_not_google_glog.h>
#pragma pop_macro("CHECK")
