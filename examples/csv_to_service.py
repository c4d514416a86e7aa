# %% [markdown]
# # Your own CSV becomes a service
# A generated click log: customers go from one article to the next one or two. Replace `clicks.csv` by your file.

# %%
import random
import re
import subprocess
import sys
from pathlib import Path
from urllib.request import Request, urlopen

import recbole_lisa

choose, rows = random.Random(1), ["customer,sku,date"]
for customer in range(200):
    article = choose.randrange(50)
    for hour in range(choose.randrange(8, 23)):
        rows.append(f"c{customer},sku-{article},2026-03-01T{hour:02d}:00:00")
        article = (article + choose.choice([1, 1, 1, 2])) % 50
Path("clicks.csv").write_text("\n".join(rows), encoding="utf-8")

# %%
command = [sys.executable, "-m", "recbole_lisa"]
options = "csv clicks.csv --output dataset/clicks --user=customer --item=sku --time=date"
subprocess.run([*command, "convert", *options.split()], check=True)
settings = {"epochs": 15, "hidden_size": 32, "learning_rate": 0.01, "show_progress": False, "state": "ERROR"}
result = recbole_lisa.run("LISASoft", "clicks", config_dict=settings)
recbole_lisa.export(result["checkpoint"], "served", overwrite=True)

# %%
# Port 0 is any free port. The service prints its address once it answers.
serve = [*command, "serve", "--export", "served", "--port", "0"]
with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as service:
    address = re.search(r"http://\S+/", service.stdout.readline())[0]
    body = b'{"histories": [["sku-8", "sku-9"]], "k": 3}'
    print(urlopen(Request(f"{address}recommend", body, {"Content-Type": "application/json"})).read().decode())
    service.terminate()
