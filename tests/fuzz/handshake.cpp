// The handshake: nobody without the secret is admitted, whatever is said and in whatever order.
#include <cstring>
#include <string>
#include <vector>

#include "messages/frame.hpp"
#include "messages/link/seal/handshake.hpp"
#include "tests/fuzz/target.hpp"

namespace troupe::fuzz {
namespace {

using namespace messages;
using role = handshake::role;

constexpr std::string_view secret = "the cluster's secret";

/// Always the same one for the same filler.
key_share share_of(std::byte filler) {
  std::array<std::byte, 64> random;
  random.fill(filler);
  key_share out = key_share::make(bytes_of(secret), random);
  out.salt.fill(filler);
  return out;
}

std::string text_of(const wire::handshake_message& message) {
  return fuzz::text_of(std::as_bytes(std::span(&message, 1)));
}

/// The sides of the conversation that is recorded, and one that nobody has recorded.
const key_share& share_of(role whose, bool recorded) {
  static const std::array<key_share, 3> shares = {share_of(std::byte{1}), share_of(std::byte{2}),
                                                  share_of(std::byte{9})};
  return shares[recorded ? (whose == role::accepts ? 0 : 1) : 2];
}

// What a side that has the secret says to ours, in order.
std::string conversation(role ours) {
  handshake accepting(role::accepts, share_of(role::accepts, true));
  handshake connecting(role::connects, share_of(role::connects, true));
  std::string out;
  wire::handshake_message last = connecting.hello();
  for (int i = 0; i < 4; ++i) {
    const bool to_acceptor = i % 2 == 0;
    if (to_acceptor == (ours == role::accepts)) out += text_of(last);
    const auto answer = (to_acceptor ? accepting : connecting).take(bytes_of(text_of(last)));
    require(answer.has_value(), "an honest handshake goes through");
    if (*answer) last = **answer;
  }
  require(accepting.done() && connecting.done(), "an honest handshake ends");
  return out;
}

}  // namespace

// The first byte chooses our role and whether our share is the one of the recorded conversation.
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
  const bool is_recorded = choice / 2 % 2 == 0;
  handshake side(ours, share_of(ours, is_recorded));
  std::string taken;
  const bool over = [&] {
    while (!in.empty()) {
      const auto message = in.bytes(sizeof(wire::handshake_message));
      taken += fuzz::text_of(message);
      const auto answer = side.take(message);
      if (!answer) return static_cast<std::size_t>(answer.error()) < refusal_kinds;
    }
    return true;
  }();
  require(over, "a refusal has a name");
  if (!side.done()) return;
  require(is_recorded, "a recorded conversation admits nobody");
  const std::string recorded = conversation(ours);
  // What a kind does not use is not looked at: the shares and the last proof are.
  const auto part = [](const std::string& of, std::size_t message, std::size_t field) {
    return of.substr(message * sizeof(wire::handshake_message) + field, 32);
  };
  using said = wire::handshake_message;
  require(part(taken, 0, offsetof(said, share)) == part(recorded, 0, offsetof(said, share)) &&
              part(taken, 1, offsetof(said, proof)) == part(recorded, 1, offsetof(said, proof)),
          "only the recorded conversation is admitted");
  const connection_keys& keys = side.keys();
  session sealed(keys.session, keys.signing, keys.verifying);
  require(!sealed.verify(wire::frame_prefix{}), "an empty seal does not hold");
}

}  // namespace troupe::fuzz
