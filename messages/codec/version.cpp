#include "messages/codec/version.hpp"

#include <capnp/common.h>

namespace troupe::messages {

std::string codec_library_version() {
  return std::to_string(CAPNP_VERSION_MAJOR) + "." + std::to_string(CAPNP_VERSION_MINOR) + "." +
         std::to_string(CAPNP_VERSION_MICRO);
}

}  // namespace troupe::messages
