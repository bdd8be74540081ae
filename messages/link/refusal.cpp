#include "messages/link/refusal.hpp"

namespace troupe::messages {

std::string_view describe(refusal why) noexcept {
  switch (why) {
    case refusal::malformed:
      return "does not speak Troupe's protocol";
    case refusal::version:
      return "speaks another version of Troupe's protocol";
    case refusal::wrong_secret:
      return "does not prove that it has the cluster's secret";
    case refusal::reflected:
      return "sent our own proof back";
    case refusal::out_of_order:
      return "sent something else before its handshake was done";
    case refusal::too_slow:
      return "did not finish its handshake in time";
    case refusal::too_many:
      return "came while too many handshakes were open";
    case refusal::by_peer:
      return "refused us";
    case refusal::other_user:
      return "belongs to another user of this machine";
  }
  return "was not admitted";
}

}  // namespace troupe::messages
