#include "messages/link/ucx/version.hpp"

#include <ucp/api/ucp.h>

namespace troupe::messages::ucx {

std::string library_version() {
  return ucp_get_version_string();
}

}  // namespace troupe::messages::ucx
