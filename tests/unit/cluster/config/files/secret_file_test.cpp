#include <fcntl.h>
#include <unistd.h>

#include <catch2/catch_test_macros.hpp>
#include <filesystem>
#include <string>

#include "cluster/config/files/secret_file.hpp"
#include "tests/unit/cluster/config_fixture.hpp"

using namespace troupe;
using namespace troupe::cluster;
using namespace troupe::cluster::testing;

TEST_CASE("a secret's file is its owner's alone, and of a good length") {
  const folder here;
  const std::string file = here.write_secret("secret");
  const auto refusal = [&file] {
    const std::string why = error_of({"--secret-file", file});
    CHECK(why.find("good length") == std::string::npos);  // what is in it
    const std::string begin = "--secret-file: " + file + " cannot hold the secret: ";
    return why.starts_with(begin) ? why.substr(begin.size()) : why;
  };
  for (const unsigned mode : {0640U, 0604U, 0610U}) {
    std::filesystem::permissions(file, std::filesystem::perms(mode));
    CHECK(refusal().starts_with("others may use it (mode 06"));
  }
  std::filesystem::permissions(file, std::filesystem::perms(0600));
  CHECK(refusal() == "accepted");
  here.write("secret", "fifteen bytes..\n\n");
  CHECK(refusal() == "holds 15 bytes; a secret has at least 16");
  here.write("secret", std::string(4097, 'x'));
  CHECK(refusal() == "is too long; a secret has at most 4096 bytes");
  std::filesystem::remove(file);
  CHECK(refusal() == "No such file or directory");
  std::filesystem::create_directory(file);
  CHECK(refusal() == "is not a regular file");
}

TEST_CASE("a secret is read without the line end, and from a pipe as it is") {
  const folder here;
  const auto text_of = [](const auto& secret) {
    REQUIRE(secret);
    const auto bytes = secret->bytes();
    return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  CHECK(text_of(read_secret_file(here.write_secret("secret"))) == "a secret of good length");
  const std::string raw = "ends in white space \n";
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  REQUIRE(::write(ends[1], raw.data(), raw.size()) == static_cast<ssize_t>(raw.size()));
  ::close(ends[1]);
  CHECK(text_of(read_inherited_secret(ends[0])) == raw);
  CHECK(::fcntl(ends[0], F_GETFD) == -1);
  CHECK_FALSE(read_inherited_secret(ends[0]));
}
