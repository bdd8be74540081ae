// The command with which a user resumes a run.

#include <catch2/catch_test_macros.hpp>
#include <string>
#include <vector>

#include "cluster/config/sources/resume_command_core.hpp"

using namespace troupe::cluster;

TEST_CASE("A run is resumed with the command that started it and --resume latest") {
  CHECK(command_to_resume({{"resnet_pipeline", "--config", "run.toml", "--steps", "40"}, ""}) ==
        "resnet_pipeline --config run.toml --steps 40 --resume latest");
  CHECK(command_to_resume({{}, ""}).empty());
}

TEST_CASE("What the settings say of resuming stays if it is the newest, and else is replaced") {
  for (const std::string newest : {"latest", "auto"}) {
    CHECK(command_to_resume({{"p", "--resume", newest, "--stages", "2"}, newest}) ==
          "p --resume " + newest + " --stages 2");
    CHECK(command_to_resume({{"p", "--config", "says-so.toml"}, newest}) ==
          "p --config says-so.toml");
  }
  CHECK(command_to_resume({{"p", "--resume", "40", "--stages", "2"}, "40"}) ==
        "p --stages 2 --resume latest");
  CHECK(command_to_resume({{"p", "--resume=there/step-000040"}, "there/step-000040"}) ==
        "p --resume latest");
}

TEST_CASE("Where the newest checkpoint is another run's, the step is named") {
  CHECK(command_to_resume({{"p", "--resume", "latest"}, "latest", false, "40"}) == "p --resume 40");
}

TEST_CASE("A run that verified its first step does not when it is resumed") {
  CHECK(command_to_resume({{"p", "--verify", "--verify-tolerance", "0.1"}, "", true}) ==
        "p --verify-tolerance 0.1 --no-verify --resume latest");
  CHECK(command_to_resume({{"p", "--config", "run.toml"}, "", true}) ==
        "p --config run.toml --no-verify --resume latest");
}

TEST_CASE("Words that a shell would take apart or replace are quoted") {
  const std::vector<std::string> started{
      "./my program", "--set", "data.source=text:$HOME", "it's", "", "a*", "~"};
  CHECK(command_to_resume({started, "auto"}) ==
        R"('./my program' --set 'data.source=text:$HOME' 'it'\''s' '' 'a*' '~')");
}
