// The handshake: nobody without the secret is admitted, whatever is said and in whatever order.
#include <cstring>
#include <vector>

#include "messages/frame.hpp"
#include "messages/link/wire/session.hpp"
#include "tests/fuzz/target.hpp"

namespace troupe::fuzz {
namespace {

using namespace messages;
using role = handshake::role;

constexpr std::string_view secret = "the cluster's secret";

handshake::nonce nonce_of(std::byte filler) {
  handshake::nonce out;
  out.fill(filler);
  return out;
}

std::string text_of(const ucx::handshake_message& message) {
  return fuzz::text_of(std::as_bytes(std::span(&message, 1)));
}

// What a side that has the secret says to ours, in order.
std::string conversation(role ours) {
  handshake accepting(role::accepts, bytes_of(secret), nonce_of(std::byte{1}));
  handshake connecting(role::connects, bytes_of(secret), nonce_of(std::byte{2}));
  std::string out;
  ucx::handshake_message last = connecting.hello();
  for (int i = 0; i < 5; ++i) {
    const bool to_acceptor = i % 2 == 0;
    if (to_acceptor == (ours == role::accepts)) out += text_of(last);
    const auto answer = (to_acceptor ? accepting : connecting).take(bytes_of(text_of(last)));
    require(answer.has_value(), "an honest handshake goes through");
    if (*answer) last = **answer;
  }
  return out;
}

}  // namespace

// The first byte chooses our role and whether our nonce is the one of the recorded conversation.
std::vector<std::string> seeds() {
  std::vector<std::string> out;
  for (const char choice : {0, 1, 2, 3}) {
    out.push_back(choice + conversation(choice % 2 == 0 ? role::accepts : role::connects));
  }
  return out;
}

void run(std::span<const std::byte> input) {
  reader in(input);
  const std::size_t choice = in.number();
  const role ours = choice % 2 == 0 ? role::accepts : role::connects;
  const bool recorded_nonce = choice / 2 % 2 == 0;
  const auto recorded = ours == role::accepts ? std::byte{1} : std::byte{2};
  handshake side(ours, bytes_of(secret), nonce_of(recorded_nonce ? recorded : std::byte{9}));
  const bool over = [&] {
    while (!in.empty()) {
      const auto answer = side.take(in.bytes(sizeof(ucx::handshake_message)));
      if (!answer) return static_cast<std::size_t>(answer.error()) < refusal_kinds;
    }
    return true;
  }();
  require(over, "a refusal has a name");
  if (!recorded_nonce) require(!side.admitted(), "a recorded conversation admits nobody");
  if (side.done()) require(side.admitted(), "who is done was admitted");
  if (!side.admitted()) return;
  ucx::frame_prefix prefix;
  require(!side.keys().verify(prefix), "an empty seal does not hold");
}

}  // namespace troupe::fuzz
